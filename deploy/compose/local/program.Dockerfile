# A program of this machine with the libraries that it loads. scripts/compose creates the build context.
FROM scratch
COPY root/ /
COPY --chown=65532:65532 empty/ /tmp/
COPY --chown=65532:65532 empty/ /prometheus/
USER 65532:65532
