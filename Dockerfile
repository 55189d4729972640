# docker build -t lrm . && docker run -it -v lrm-results:/lrm/results lrm make fig1
# The volume keeps results/reference of the image that made it: after a new build remove the volume,
# or mount lrm-runs:/lrm/results/runs alone.
FROM debian:bookworm-slim AS base
# The tests of Python's standard library are half of the default corpus; g++ and Python's headers
# compile layers.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates g++ git \
        libpython3.11-testsuite make python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home lrm \
    && install --directory --owner lrm --group lrm /lrm
USER lrm
WORKDIR /lrm

FROM base
# Torch without CUDA; with --build-arg PIP_EXTRA_INDEX_URL= it comes with it.
ARG PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu
COPY --chown=lrm:lrm . .
RUN mkdir -p results/runs && make setup-dev setup-notebooks && rm -rf ~/.cache/pip
CMD ["make", "help"]
