# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Sourced by quickstart and check: what the build needs, and how a step shows that it is alive.

# CUDA and NCCL are not among them: they are looked for when the program runs.
DEBIAN_PACKAGES=(
    binutils
    g++
    gcc
    libc6-dev
    libevent-dev
    libgtest-dev
    libhwloc-dev
    libjansson-dev
    libopenblas-dev
    libssl-dev
    libxxhash-dev
    meson
    ninja-build
    pkg-config
)

die() {
    printf '%s: %s\n' "${0##*/}" "$*" >&2
    exit 1
}

# step TITLE LOG COMMAND...: runs a command with its output in LOG; shows the time that passes, and the
# end of LOG when it fails.
step() {
    local title=$1 log=$2 start=$SECONDS status=0 shown=0 pid
    shift 2
    mkdir -p "$(dirname "$log")"
    printf '==> %s\n' "$title"
    "$@" >"$log" 2>&1 </dev/null &
    pid=$!
    # shellcheck disable=SC2064
    trap "kill $pid 2>/dev/null || true" EXIT
    while kill -0 "$pid" 2>/dev/null; do
        sleep 0.2
        if [[ -t 1 ]]; then
            printf '\r    %d s ' $((SECONDS - start))
        elif ((SECONDS - start >= shown + 15)); then
            shown=$((SECONDS - start))
            printf '    %d s: %s\n' "$shown" "$(tail -n 1 "$log" | tr '\r' '\n' | tail -n 1 | cut -c1-90)"
        fi
    done
    wait "$pid" || status=$?
    trap - EXIT
    [[ -t 1 ]] && printf '\r'
    if ((status)); then
        printf '    failed with status %d after %d s; the end of %s:\n' "$status" \
            $((SECONDS - start)) "$log"
        tail -n 40 "$log"
        return "$status"
    fi
    printf '    done in %d s\n' $((SECONDS - start))
}

missing_packages() {
    local package
    for package in "${DEBIAN_PACKAGES[@]}"; do
        # shellcheck disable=SC2016
        [[ $(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) == installed ]] ||
            printf '%s\n' "$package"
    done
}

# Installs what is missing; downloads nothing when nothing is. $1: log file.
install_packages() {
    local missing sudo=()
    if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
        printf '==> Not a Debian system: assuming that the equivalents of these are there:\n    %s\n' \
            "${DEBIAN_PACKAGES[*]}"
        return
    fi
    mapfile -t missing < <(missing_packages)
    ((${#missing[@]})) || return 0
    if ((EUID)); then
        command -v sudo >/dev/null ||
            die "these packages are missing: ${missing[*]}; run it as root, or install them first"
        sudo=(sudo)
    fi
    local apt=("${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -y -o Dpkg::Use-Pty=0
        -o Acquire::Retries=3 -o DPkg::Lock::Timeout=120)
    step "Package lists" "$1" "${apt[@]}" update
    step "Installing ${missing[*]}" "$1" "${apt[@]}" install --no-install-recommends "${missing[@]}"
}
