"""The build's only code: it adds a bill of materials to the wheel. Everything else is in pyproject.toml."""

import json
import re
from pathlib import Path

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel


def bill_of_materials(distribution):
    """The project and what it asks for as CycloneDX 1.6, without a time or a random number: the same for each build."""
    metadata, own = distribution.metadata, f"pkg:pypi/{distribution.get_name()}@{distribution.get_version()}"
    asked = dict.fromkeys(distribution.install_requires, "required")
    asked |= {text: "optional" for texts in distribution.extras_require.values() for text in texts if text not in asked}
    components = {}
    for text in sorted(asked):
        name, wanted = re.match(r"([A-Za-z0-9._-]+)(?:\[[^]]*\])?(.*)", text).groups()
        # An extra may ask for other extras of the project itself.
        if name == distribution.get_name():
            continue
        # Which version is there decides the installation, so only what is asked for can be stated.
        properties = [{"name": "requirement", "value": wanted.strip()}] if wanted.strip() else []
        reference = f"pkg:pypi/{name.lower().replace('_', '-')}"
        component = {"type": "library", "bom-ref": reference, "name": name, "purl": reference, "scope": asked[text]}
        # An extra never takes the place of what is always needed.
        if components.get(reference, component)["scope"] != "required" or asked[text] == "required":
            components[reference] = component | ({"properties": properties} if properties else {})
    required = [reference for reference, component in components.items() if component["scope"] == "required"]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "library",
                "bom-ref": own,
                "name": distribution.get_name(),
                "version": distribution.get_version(),
                "description": metadata.description,
                "licenses": [{"license": {"id": metadata.license_expression}}],
                "purl": own,
            }
        },
        "components": [*components.values()],
        "dependencies": [{"ref": own, "dependsOn": required}],
    }


class WithBill(bdist_wheel):
    """A wheel with the bill in its metadata folder, where PEP 770 has it."""

    def write_wheelfile(self, wheelfile_base, *arguments, **options):
        """Write the bill beside the file WHEEL."""
        super().write_wheelfile(wheelfile_base, *arguments, **options)
        folder = Path(wheelfile_base) / "sboms"
        folder.mkdir(exist_ok=True)
        text = json.dumps(bill_of_materials(self.distribution), indent=2)
        (folder / f"{self.distribution.get_name()}.cdx.json").write_text(text + "\n", encoding="utf-8")


setup(cmdclass={"bdist_wheel": WithBill})
