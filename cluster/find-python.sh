#!/bin/sh
# Find the Pythons that Sparring runs on: CPython 3.11, 3.12 and 3.13.
#     cluster/find-python.sh          print the path of one: $PYTHON if it is set, else the first on the PATH
#     cluster/find-python.sh --all    print the oldest of each minor version, one path a line
# Without one, say which Pythons there are and how to get another, and exit with 1.

SUPPORTED="3.11 3.12 3.13"

candidates() {
    if [ -n "$PYTHON" ]; then
        command -v "$PYTHON"
        return
    fi
    for name in python3 $(printf 'python%s ' $SUPPORTED) python; do
        # A PATH may have several of one name, such as the system's behind another.
        printf '%s\n' "$PATH" | tr ':' '\n' | while read -r folder; do
            if [ -x "$folder/$name" ]; then printf '%s\n' "$folder/$name"; fi
        done
        if command -v pyenv >/dev/null 2>&1; then pyenv whence --path "$name" 2>/dev/null; fi
    done
}

# Lines of MINOR PATCH PATH for those that start; the link of a virtual environment counts as what it leads to.
found() {
    candidates | while read -r python; do
        "$python" -I -c '
import sys
if sys.implementation.name == "cpython":
    print("%d.%d %d" % sys.version_info[:3], getattr(sys, "_base_executable", "") or sys.executable)
' 2>/dev/null
    done | awk '!seen[$0]++'
}

pythons=$(found)
supported=$(printf '%s\n' "$pythons" | awk -v supported="$SUPPORTED" '
    BEGIN { split(supported, list, " "); for (i in list) known[list[i]] = 1 } $1 in known')

if [ -n "$supported" ] && [ "$1" = --all ]; then
    printf '%s\n' "$supported" | sort -t. -k2,2n | sort -s -k1,1V -k2,2n | awk '!seen[$1]++ { sub(/^[^ ]+ [^ ]+ /, ""); print }'
    exit 0
elif [ -n "$supported" ]; then
    printf '%s\n' "$supported" | awk 'NR == 1 { sub(/^[^ ]+ [^ ]+ /, ""); print }'
    exit 0
fi

{
    if [ -n "$pythons" ]; then
        echo "error: Sparring needs Python 3.11, 3.12 or 3.13. Found only:"
        printf '%s\n' "$pythons" | awk '{ minor = $1; patch = $2; sub(/^[^ ]+ [^ ]+ /, ""); print "  Python " minor "." patch " at " $0 }'
    else
        echo "error: Sparring needs Python 3.11, 3.12 or 3.13. Found no Python${PYTHON:+ at $PYTHON}."
    fi
    cat <<'END'
The shortest way to get one:
  Debian, Ubuntu  sudo apt install python3 python3-venv
  Fedora          sudo dnf install python3.13
  macOS           brew install python@3.13
  with uv         uv python install 3.13 && export PATH="$(dirname "$(uv python find 3.13)"):$PATH"
If it is not on the PATH, name it: PYTHON=/path/to/python3.13 make demo
END
} >&2
exit 1
