# The image of the Dockerfile at the top, from binaries that are built already. Its context is made by scripts/compose.
FROM scratch
COPY bin/ /bin/
COPY --chown=65532:65532 empty/ /certs/
COPY --chown=65532:65532 empty/ /run/keyward/
USER 65532:65532
CMD ["/bin/sidecar"]
