# ringar with TensorFlow, for CPUs or, with --build-arg CUDA=12, for NVIDIA GPUs:
#
#     docker build --tag ringar .
#     docker run --rm --volume "$PWD:/work" ringar ringarrun -np 2 train.py
#     docker build --build-arg CUDA=12 --tag ringar:cuda .
#     docker run --rm --gpus all --volume "$PWD:/work" ringar:cuda ringarrun -np 2 train.py
ARG PYTHON=3.12

FROM python:${PYTHON}-slim AS build
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY . .
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:${PYTHON}-slim
ARG CUDA=
# ssh reaches other hosts.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends openssh-client \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build /wheels /wheels
RUN case "${CUDA}" in \
      "") extras=tensorflow ;; \
      12) extras=tensorflow,gpu-test ;; \
      *) echo "CUDA: expected 12 or nothing, received ${CUDA}" >&2; exit 1 ;; \
    esac \
    && pip install --no-cache-dir "$(echo /wheels/*.whl)[${extras},launcher]" \
    && ringarrun --check-build
RUN useradd --create-home --uid 1000 ringar
USER 1000
WORKDIR /work
CMD ["ringarrun", "--help"]
