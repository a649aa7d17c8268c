#!/usr/bin/env bash
# install - what `make install` leaves is enough for users: programs, ckpt.h, libckpt by pkg-config.
#
# Goal: a program compiles against the installed header and libraries alone, shared and static, as C
# and as C++, saves and loads; the shared library exports ckpt.h's functions with a version, and
# nothing else. Method: an installation into a fresh folder; the example of the documentation.
# time limit: 180 s
. "$(dirname "$0")/lib.sh"
plan 17
root=$tmp/root

# Who runs the tests has built everything: nothing is compiled again here.
check "make install works" make -s BUILD="$BUILD" PREFIX=/usr DESTDIR="$root" install
sed 's|^prefix=.*|prefix='"$root"'/usr|' -i "$root/usr/lib/pkgconfig/libckpt.pc"
export PKG_CONFIG_PATH=$root/usr/lib/pkgconfig
check "pkg-config knows libckpt" pkg-config --exists libckpt
flags() { pkg-config "$@" libckpt; }
strict=(-Wall -Wextra -Werror)
if nm "$BUILD/ckptd" | grep -q __asan_init; then strict+=(-fsanitize=address,undefined); fi

cp clients/examples/ckpt_example.c "$tmp"
printf '#include <ckpt.h>\nint main() { return ckpt_error() == nullptr; }\n' >"$tmp/plus.cpp"
read -r -a shared <<<"$(flags --cflags --libs)"
read -r -a static <<<"$(flags --static --cflags --libs | sed 's/-lckpt//')"
check "the example compiles with the shared library" \
    gcc "${strict[@]}" "$tmp/ckpt_example.c" -o "$tmp/shared" -pthread "${shared[@]}"
check "the example compiles with the static library" gcc "${strict[@]}" "$tmp/ckpt_example.c" \
    -o "$tmp/static" "$root/usr/lib/libckpt.a" "${static[@]}"
check "the header is C++ too" g++ "${strict[@]}" "$tmp/plus.cpp" -o "$tmp/plus" "${shared[@]}"

exports=$(nm -D --defined-only "$root/usr/lib/libckpt.so.1" | awk '$2 != "A" { print $3 }' | sort)
declared=$(grep -oE '\bckpt_[a-z_]+\(' clients/ckpt.h | tr -d '(' | sort -u)
without=$(grep -v '@@CKPT_1$\|^__asan\|^__odr_asan\|^__ubsan' <<<"$exports")
check "every exported name has a version" test -z "$without"
versioned=$(grep '@@CKPT_1$' <<<"$exports" | sed 's/@@.*//' | sort -u)
missing=$(comm -23 <(echo "$declared") <(echo "$versioned"))
check "every function of ckpt.h is exported" test -z "$missing"
extra=$(comm -13 <(echo "$declared") <(echo "$versioned"))
check "and nothing that ckpt.h does not declare" test -z "$extra"

pages=$root/usr/share/man/man1
absent=()
for name in ckptd trainer tokenizer holdfast-launch ckpt-cli; do
    test -s "$pages/$name.1" || absent+=("$name")
done
check_equal "every program has a man page" "${absent[*]}" ""
mapfile -t commands < <("$BUILD/ckpt-cli" --help | awk '/^  [a-z]/ { print $1 }')
check "ckpt-cli tells its commands" test ${#commands[@]} -ge 16
for name in "${commands[@]}"; do # help2man escapes what groff would take for something else
    help=$("$BUILD/ckpt-cli" "$name" --help)
    page=$(tr -d '\\' <"$pages/ckpt-cli-$name.1" | sed 's/f[BIR]\(--\)/\1/g')
    for line in "$(sed -n 2p <<<"$help")" $(awk '/^  --/ { print $1 }' <<<"$help") "Exit codes"; do
        grep -qF -- "$line" <<<"$page" || absent+=("$name: $line")
    done
done
check_equal "every command has one, with what it is for, its options and its exit codes" \
    "${absent[*]}" ""

start_ckptd
check "the shared example saves" env LD_LIBRARY_PATH="$root/usr/lib" "$tmp/shared" "$server"
check "the static one goes on" "$tmp/static" "$server"
newest=$("$root/usr/bin/ckpt-cli" list --store "$store" | awk 'NR == 2 { print $1 }')
check_equal "where the other stopped" "${newest#*@}" "6-a2"

complete_words() { # WORD...: what the shell would offer for the last one
    PATH=$root/usr/bin:$PATH bash -c '
        . "$0/usr/share/bash-completion/completions/ckpt-cli"
        COMP_WORDS=(ckpt-cli "$@") COMP_CWORD=$#
        _ckpt_cli && echo "${COMPREPLY[*]}"' "$root" "$@"
}
check_equal "the shell completes commands" "$(complete_words ver)" "verify"
check_equal "and options" "$(complete_words prune --keep-l)" "--keep-last"
check_equal "and checkpoints" "$(complete_words verify --store "$store" "${newest%-a2}")" "$newest"
