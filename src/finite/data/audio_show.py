"""What a training says of the findings of an audio audit."""

from collections.abc import Sequence

from finite.data.sample import Finding
from finite.data.text import printable

_EXAMPLES = 3


def sentences(findings: Sequence[Finding]) -> list[str]:
    """One line for each kind that cost something or is a leak, the first three files named; and one for each correction with the
    number of files. Mere notes are in the run's findings.json."""
    lines = []
    for kind in dict.fromkeys(finding.kind for finding in findings):
        group = [finding for finding in findings if finding.kind == kind]
        first = group[0]
        if first.action == "note" and not any(finding.reason.startswith("LEAK") for finding in group):
            continue
        shown = "; ".join(f"{printable(finding.file or 'the whole set')}: {printable(finding.reason)}" for finding in group[:_EXAMPLES])
        more = f"; and {len(group) - _EXAMPLES} more" if len(group) > _EXAMPLES else ""
        done = {"drop_file": "file set aside", "fix": "corrected"}.get(first.action, first.action)
        lines.append(f"{kind.replace('_', ' ')} ({done}, {len(group)} in all): {shown}{more}")
    return lines
