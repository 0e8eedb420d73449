# The gateway: docker build -t redraft . && docker run --rm -p 8484:8484 -v redraft:/var/lib/redraft redraft
# docs/how-to/operate-a-gateway.md says how to give it a configuration and keys.

FROM python:3.13-slim AS build
COPY pyproject.toml README.md LICENSE /src/
COPY src /src/src
COPY examples/demo /src/examples/demo
RUN python -m venv /opt/redraft
RUN /opt/redraft/bin/python -m pip install --no-cache-dir --disable-pip-version-check "/src[gateway,mcp,otel]"

FROM python:3.13-slim
RUN useradd --system --uid 10001 --home-dir /var/lib/redraft --shell /usr/sbin/nologin redraft
RUN install -d -o redraft -g redraft -m 0700 /var/lib/redraft
COPY --from=build /opt/redraft /opt/redraft
COPY deploy/gateway.toml /etc/redraft/gateway.toml
ENV PATH=/opt/redraft/bin:/usr/local/bin:/usr/bin:/bin PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 REDRAFT_HOME=/var/lib/redraft
USER redraft
WORKDIR /var/lib/redraft
VOLUME /var/lib/redraft
EXPOSE 8484
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=20s --retries=3 \
    CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8484/healthz', timeout=2)"]
ENTRYPOINT ["redraft"]
CMD ["serve", "--log-format", "json", "--config", "/etc/redraft/gateway.toml", "--host", "0.0.0.0"]
