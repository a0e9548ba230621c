"""The section on the encoder of the embeddings."""

from collections import Counter
from pathlib import Path
from typing import Any

from gigatile.report.task_report import Banner, Content, Section

TEMPLATE = Path(__file__).parent / "templates/encoder.html.j2"


def _content(run: Any) -> Content:
    """Return the encoder of the slides, and a warning if they have several."""
    by_text = {
        state.encoder.model_dump_json(): state.encoder
        for state in run.states.values()
        if state.encoder
    }
    counts = Counter(
        state.encoder.model_dump_json() for state in run.states.values() if state.encoder
    )
    shown = [{"facts": by_text[text], "slides": count} for text, count in counts.most_common()]
    hashes = {facts.sha256 for facts in by_text.values()}
    banners = []
    if len(hashes) > 1:
        banners.append(
            Banner(
                "The slides were embedded by different encoders.",
                "Embeddings of two encoders cannot be compared. Embed all slides with one.",
                link=("encoder", "Encoder"),
                alarm=True,
            )
        )
    return Content({"encoders": shown}, banners)


ENCODER_SECTION = Section("encoder", "Encoder", TEMPLATE, _content)
