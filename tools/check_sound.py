"""Look through a folder of sound and say what is wrong with it; nothing in it is changed.

    python tools/check_sound.py recordings
    python tools/check_sound.py recordings --set data.sample_rate=16000 --json findings.json

Exit code 0: it can be trained on; 2: it cannot (or --strict and there are findings).
"""

import argparse
from dataclasses import asdict
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from finite.errors import UserError, exit_code, tell_missing  # noqa: E402 - found on the path set above

tell_missing()

from finite import config  # noqa: E402
from finite.data import audio_audit  # noqa: E402
from finite.data.text import printable  # noqa: E402
from finite.run import write_json  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("data", type=Path, help="the folder with .wav, .flac or .ogg files")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of the waveform task, as in main.py")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write counts and every finding")
    parser.add_argument("--strict", action="store_true", help="fail on any finding")
    options = parser.parse_args()
    wanted = config.load(None, [*options.set, "task=waveform"])
    if options.json is not None and options.json.resolve().is_relative_to(options.data.resolve()):
        raise UserError(f"--json {options.json}: lies in the folder that is looked at; choose another place")
    audit = audio_audit.check(options.data, wanted.data.sample_rate, max(r.fft for r in wanted.loss.resolutions))
    for finding in audit.findings:
        print(f"{printable(finding.file or '')}: {finding.kind} ({finding.action}): {printable(finding.reason)}")
    seconds = sum(clip.samples for clips in audit.splits.values() for clip in clips) / audit.rate
    splits = ", ".join(f"{name} {len(clips)}" for name, clips in audit.splits.items())
    print(f"{options.data}: {'pairs' if audit.pairs else 'clean files'}, {audit.usable} of {audit.files} files usable ({splits}), {seconds:.1f} s")
    if options.json is not None:
        write_json(options.json, {"files": audit.files, "usable": audit.usable, "seconds": seconds, "pairs": audit.pairs,
                                  "findings": [asdict(finding) for finding in audit.findings]})
    return 0 if audit.usable and not (options.strict and audit.findings) else 2


if __name__ == "__main__":
    sys.exit(exit_code(main))
