# One program and the libraries that it loads, from this machine. Its context is made by scripts/compose.
FROM scratch
COPY root/ /
COPY --chown=65532:65532 empty/ /tmp/
COPY --chown=65532:65532 empty/ /prometheus/
USER 65532:65532
