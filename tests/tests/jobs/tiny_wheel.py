# Writes a package that any installer takes.
import os, zipfile

wheel = "tiny-1.0-py3-none-any.whl"
if not os.path.exists(wheel):
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr("tiny/__init__.py", "ANSWER = 42\n")
        file.writestr("tiny-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
        file.writestr("tiny-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr("tiny-1.0.dist-info/RECORD", "")
