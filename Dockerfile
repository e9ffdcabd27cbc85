# For clusters without a Python of their own:
# docker build -t pipette-opt . && docker run --rm --user "$(id -u)" -v "$PWD:/work" pipette-opt --help
FROM python:3.12-slim AS build
WORKDIR /source
COPY . .
RUN pip install --no-cache-dir build && python -m build --wheel --outdir /wheels

FROM python:3.12-slim
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir /wheels/*.whl && rm -r /wheels \
    && useradd --create-home planner && mkdir /work /kernels && chown planner /work /kernels
USER planner
# Compiled kernels are kept in the image, so that the first plan on a processor like this one does not wait for them;
# whoever runs it may add those of another.
ENV NUMBA_CACHE_DIR=/kernels
RUN pipette-opt solve --example lab-2x8 --time-limit 5 --out /tmp/plan.json \
    && rm /tmp/plan.json && chmod -R a+rwX /kernels
WORKDIR /work
ENTRYPOINT ["pipette-opt"]
