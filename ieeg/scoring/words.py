"""What the scores of a cohort say, in sentences, and what they cannot say."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from mvpa_ts.checks import listed
from mvpa_ts.ieeg.constants import counted, length
from mvpa_ts.ieeg.detection.rules import PAPER_REFERENCE_GAP
from mvpa_ts.ieeg.scoring.results import SubjectResult
from mvpa_ts.ieeg.scoring.scores import Scores

# Scored time that a rate of false detections needs (h).
MIN_HOURS = 1.0
# Seizures that a share of seizures needs: of fewer, each changes it by more than a fifth.
MIN_SEIZURES = 5
# Subjects that a mean, a box plot or a line over subjects needs.
MIN_SUBJECTS = 3

# Sentences by the answer of `SubjectResult.in_training`.
TRAINED_ON = {
    "yes": "The model was trained on recordings of {}: their scores do not show how good it is.",
    "some files": "The model was trained on some of the recordings of {}: their scores do not show how good it is. "
    "Score the others alone.",
    "other files": "The model was trained on other recordings of {}: these scores are for new recordings of people "
    "that it knows, not for new people.",
    "not this file": "The model is a detector of one patient, and was not trained on the recordings of {}. If they are "
    "of this patient, their scores say nothing of new people.",
}


def in_words(results: Sequence[SubjectResult]) -> tuple[str, ...]:
    """What was found in all subjects together, whether the model knew them, and what is too little to tell."""
    events = Scores.pooled(result.events for result in results)
    delays = [delay for result in results for delay in result.online.delays if not math.isnan(delay)]
    sentences = [
        f"Found {events.true_positives} of {counted(events.reference, 'seizure')}, "
        f"{counted(events.false_positives, 'false detection')} in {length(events.hours)}"
        f"{f', median delay {np.median(delays):.0f} s' if delays else ''}."
    ]
    if events.reference:
        seconds = Scores.pooled(result.seconds for result in results)
        sentences.append(
            f"Detections cover {seconds.true_positives:,} of {seconds.reference:,} s of seizures. A seizure counts as "
            "found with any overlap from 30 s before it to 60 s after it, as in SzCORE."
        )
    false_seconds = sum(result.seconds.false_positives for result in results)
    sentences.append(f"Events cover {false_seconds:,} s without a seizure.")
    # Merging makes fewer events than the annotations, which readers would take for lost seizures.
    if (annotated := sum(result.num_seizures for result in results)) != events.reference:
        rules = {
            "szcore": "seizures less than 90 s apart count as one, and those of more than 5 min as several",
            "paper": f"seizures less than {PAPER_REFERENCE_GAP:.0f} s apart count as one",
        }[results[0].mode]
        verb = "is" if annotated == 1 else "are"
        sentences.append(f"{counted(annotated, 'seizure')} {verb} annotated; in the scores of events {rules}.")
    if skipped := sum(result.seizures_skipped for result in results):
        verbs = ("lies", "counts", "it") if skipped == 1 else ("lie", "count", "them")
        sentences.append(
            f"{counted(skipped, 'annotated seizure')} {verbs[0]} where nothing was scored and {verbs[1]} as missed, "
            f"unless an event beside {verbs[2]} counts as a find."
        )
    for answer, words in TRAINED_ON.items():
        if trained := [result.subject for result in results if result.in_training == answer]:
            sentences.append(words.format(f"{len(trained)} of {counted(len(results), 'subject')} ({listed(trained)})"))
    if events.hours < MIN_HOURS:
        sentences.append("Less than an hour is too short for a rate of false detections.")
    if 0 < events.reference < MIN_SEIZURES:
        sentences.append(f"Fewer than {MIN_SEIZURES} seizures are too few for a sensitivity.")
    if len(results) < MIN_SUBJECTS:
        sentences.append(f"Fewer than {MIN_SUBJECTS} subjects are too few for means, regressions and box plots.")
    return tuple(sentences)
