# The same image as the Dockerfile of the repository, with prebuilt binaries. scripts/compose creates the build context.
FROM scratch
COPY bin/ /bin/
COPY --chown=65532:65532 empty/ /certs/
COPY --chown=65532:65532 empty/ /run/keyward/
COPY --chown=65532:65532 empty/ /var/lib/keyward/
USER 65532:65532
CMD ["/bin/sidecar"]
