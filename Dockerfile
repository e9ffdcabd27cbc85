# For clusters without a Python of their own: docker build -t pipette-opt . && docker run --rm -v "$PWD:/work" pipette-opt --help
FROM python:3.12-slim AS build
WORKDIR /source
COPY . .
RUN pip install --no-cache-dir build && python -m build --wheel --outdir /wheels

FROM python:3.12-slim
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir /wheels/*.whl && rm -r /wheels && useradd --create-home planner
USER planner
# Compiled kernels are kept in the image, so that the first plan does not wait for them.
ENV NUMBA_CACHE_DIR=/home/planner/kernels
RUN pipette-opt solve --example lab-2x8 --time-limit 5 --out /tmp/plan.json
WORKDIR /work
ENTRYPOINT ["pipette-opt"]
