# The server of a model that is mounted at /model (a run, or what `grace export` wrote):
#   docker run -p 127.0.0.1:8000:8000 -v "$PWD/exported/qwen:/model:ro" -e GRACE_API_KEY grace
# or of one that vLLM serves elsewhere:
#   docker run ... grace grace proxy /model --upstream http://vllm:8001 --host 0.0.0.0
FROM python:3.11-slim

RUN pip install --no-cache-dir torch==2.13.0

WORKDIR /app
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN pip install --no-cache-dir '.[local]' && useradd --create-home grace

USER grace
ENV HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
EXPOSE 8000
HEALTHCHECK --interval=30s --start-period=120s \
    CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/health')"]
# Inside a container loopback would be out of reach; the port above is published on loopback.
CMD ["grace", "serve", "/model", "--host", "0.0.0.0", "--name", "grace"]
