"""Train gated attention with PyTorch; `benchmarks/embeddings.py` starts this.

It runs in an environment with PyTorch and h5py, not in that of the project. For each line on
standard input it trains for an epoch, one slide per step, and prints the seconds and the peak of
memory in MB as JSON. It is the loop of CLAM and of ABMIL's authors: each slide is read from HDF5
when it is its turn, by the workers of a `DataLoader`.
"""

import json
import sys
import time
from pathlib import Path

import h5py
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

VECTOR, HIDDEN = 512, 256


class Slides(Dataset):
    """The embeddings of slides, of which every second one is of class 1."""

    def __init__(self, folder: Path) -> None:
        self._paths = sorted(folder.glob("*.h5"))
        self._paths = [path for path in self._paths if path.stem != "out"]

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        with h5py.File(self._paths[number]) as file:
            return torch.from_numpy(file["features"][:]), number % 2


class GatedAttention(nn.Module):
    """The layers of `train.model: abmil`."""

    def __init__(self, dimensions: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dimensions, elementwise_affine=False)
        self.vector = nn.Linear(dimensions, VECTOR)
        self.value, self.gate = nn.Linear(VECTOR, HIDDEN), nn.Linear(VECTOR, HIDDEN)
        self.score = nn.Linear(HIDDEN, 1, bias=False)
        self.logits = nn.Linear(VECTOR, 2)

    def forward(self, embeddings: torch.Tensor) -> torch.Tensor:
        vectors = torch.relu(self.vector(self.norm(embeddings)))
        gated = torch.tanh(self.value(vectors)) * torch.sigmoid(self.gate(vectors))
        attention = torch.softmax(self.score(gated), dim=0)
        return self.logits((attention * vectors).sum(dim=0, keepdim=True))


def main() -> None:
    torch.set_num_threads(2)
    slides = Slides(Path(sys.argv[1]))
    network = GatedAttention(slides[0][0].shape[1])
    optimizer = torch.optim.Adam(network.parameters(), lr=float(sys.argv[2]))
    loss = nn.CrossEntropyLoss()
    loader = DataLoader(slides, batch_size=1, shuffle=True, num_workers=1, persistent_workers=True)
    for _ in sys.stdin:
        start = time.perf_counter()
        for embeddings, labels in loader:
            optimizer.zero_grad()
            loss(network(embeddings[0]), labels).backward()
            optimizer.step()
        seconds = time.perf_counter() - start
        status = Path("/proc/self/status").read_text()
        peak = int(status.split("VmHWM:")[1].split()[0]) / 1000
        print(json.dumps([seconds, peak]), flush=True)


if __name__ == "__main__":
    main()
