#!/bin/bash
#SBATCH --nodes=16
TP=8
DTYPE=${DTYPE:-bf16}
GPT_ARGS=(
  --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336
  --num-attention-heads 32 --group-query-attention --num-query-groups 8
  --seq-length 4096 --max-position-embeddings 8192
  --swiglu --normalization RMSNorm --position-embedding-type rope
  --disable-bias-linear --untie-embeddings-and-output-weights
  --vocab-size 128256
)
TRAIN_ARGS="--micro-batch-size 1 --global-batch-size 512 --lr 3e-4"
if [[ "$DTYPE" == "fp8" ]]; then
  TRAIN_ARGS+=" --fp8-format hybrid"
else
  TRAIN_ARGS+=" --bf16"
fi
torchrun --nproc-per-node 8 pretrain_gpt.py \
  "${GPT_ARGS[@]}" $TRAIN_ARGS \
  --tensor-model-parallel-size $TP --pipeline-model-parallel-size 4 \
  --num-layers-per-virtual-pipeline-stage 4 --sequence-parallel --use-distributed-optimizer
