python pretrain_gpt.py --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 --seq-length 4096 \
 --max-position-embeddings 4096 --vocab-size 32000 --num-experts 8 --moe-router-topk 2 --moe-token-dispatcher-type alltoall \
 --expert-model-parallel-size 4 --pipeline-model-parallel-size 4 --moe-grouped-gemm --bf16 --swiglu --moe-layer-freq "([0]*2+[1]*30)" \
 --micro-batch-size 2 --global-batch-size 256 --recompute-granularity full --recompute-method block --recompute-num-layers 2
