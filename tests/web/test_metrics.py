"""Metrics for Prometheus."""

from __future__ import annotations

import asyncio
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from postroom.commands.spec import CommandSpec
from postroom.queue.submission import submit
from postroom.store.base import create_base
from postroom.store.files import LocalFiles
from postroom.web.metrics import metrics
from postroom.web.queue_reader import QueueReader


def test_the_metrics_are_what_prometheus_reads(tmp_path: Path) -> None:
    base = create_base(tmp_path / "base")
    submit(LocalFiles(), base, [CommandSpec("true", cwd="/")] * 3, project='quo"te\\')
    reader = QueueReader(base)
    text = metrics(asyncio.run(reader.overview()), 2).decode()
    reader.close()
    found = {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert found["postroom_jobs", "queued"] == 3
    assert found["postroom_master_up",] == 0
    assert found["postroom_page_listeners",] == 2
    assert found["postroom_project_jobs", "queued", 'quo"te\\'] == 3
    assert found["postroom_card_memory_total_bytes", "0", "FAKE-0", "Simulated"] == 24 << 30
