"""The settings of the server."""

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

# Addresses that only programs on this machine reach.
LOOPBACK = ("127.0.0.1", "::1", "localhost")


class ServerSettings(BaseModel):
    """How the server listens, and its limits.

    Attributes:
        host: address to listen on.
        port: to listen on; 0: a free one.
        token: that requests must have; None: none, for `LOOPBACK` only.
        max_batch: most tiles that the model scores at once.
        batch_wait_ms: time for which tiles wait for others, to share a batch.
        max_queue: most tiles that wait; further requests are refused.
        max_body_bytes: most bytes of a request's body.
        max_instances: most tiles of a request.
        header_seconds, body_seconds: for a client to send its request.
        request_seconds: for the prediction of a request.
        max_connections: at the same time.
        drain_seconds: for requests in flight, after SIGTERM.
        work_dir: for jobs of slides, their files and their database; None: no jobs.
        encoders: files of the encoders of models of embeddings.
        allowed_folders: with slides that requests may name by their paths.
        max_upload_bytes: most bytes of an uploaded slide.
        max_jobs: jobs that run at the same time.
        max_waiting_jobs: further jobs are refused.
        job_cores: of each job, and processes that read tiles for the viewer.
        tile_seconds: for a tile of the viewer.
        job_seconds, job_memory_bytes: most time and memory of a job.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    host: str = "127.0.0.1"
    port: int = Field(8501, ge=0, le=65535)
    token: str | None = Field(None, min_length=16, repr=False)
    max_batch: int = Field(64, ge=1, le=1024)
    batch_wait_ms: float = Field(2, ge=0, le=1000)
    max_queue: int = Field(4096, ge=1)
    max_body_bytes: int = Field(32_000_000, ge=1024)
    max_instances: int = Field(1024, ge=1)
    header_seconds: float = Field(10, gt=0)
    body_seconds: float = Field(30, gt=0)
    request_seconds: float = Field(60, gt=0)
    max_connections: int = Field(256, ge=1)
    drain_seconds: int = Field(30, ge=0)
    work_dir: Path | None = None
    encoders: tuple[Path, ...] = ()
    allowed_folders: tuple[Path, ...] = ()
    max_upload_bytes: int = Field(20_000_000_000, ge=1024)
    max_jobs: int = Field(1, ge=1, le=64)
    max_waiting_jobs: int = Field(1000, ge=1)
    job_cores: int = Field(2, ge=1)
    tile_seconds: float = Field(20, gt=0)
    job_seconds: float = Field(14_400, gt=0)
    job_memory_bytes: int = Field(16_000_000_000, ge=100_000_000)

    @property
    def is_local(self) -> bool:
        """Whether only programs on this machine reach the server."""
        return self.host in LOOPBACK


def read_token(path: Path) -> str:
    """Return the token in a file.

    Raises:
        ValueError: others can read the file, or it has no token of at least 16 characters.
        OSError: the file cannot be read.
    """
    if path.stat().st_mode & 0o077:
        raise ValueError(f"others can read it; run: chmod 600 {path}")
    token = path.read_text(encoding="utf-8").strip()
    if len(token) < 16 or not token.isascii() or not token.isprintable() or " " in token:
        raise ValueError("must have one line of at least 16 printable ASCII characters")
    return token
