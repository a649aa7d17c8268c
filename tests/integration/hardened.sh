#!/usr/bin/env bash
# hardened - protections by the compiler and the linker against the exploitation of a bug.
#
# Goal: each program and the library is position independent, its relocations are read-only and made
# at the start, no page of its stack can be executed, and overruns of arrays and of copies of known
# size end the process. Method: readelf and nm of the built files.
. "$(dirname "$0")/lib.sh"
nm "$BUILD/ckptd" | grep -qE '__(asan_init|tsan_init|ubsan_handle)' &&
    skip_all "sanitizers are there instead"
command -v readelf >/dev/null || skip_all "no readelf (binutils)"
built=(ckptd ckpt-cli trainer tokenizer libckpt.so.1)
plan $((${#built[@]} * 2))

for name in "${built[@]}"; do
    file=$BUILD/$name missing=()
    readelf -Wh "$file" | grep -q 'Type: *DYN' || missing+=("position independence")
    readelf -Wl "$file" | grep -q GNU_RELRO || missing+=("read-only relocations")
    readelf -Wd "$file" | grep -qE 'BIND_NOW|FLAGS_1.*NOW' || missing+=("binding at the start")
    readelf -Wl "$file" | grep 'GNU_STACK' | grep -q ' RW ' || missing+=("a stack without code")
    check_equal "$name has what the linker can give" "${missing[*]}" ""
    missing=()
    symbols=$(nm -D --undefined-only "$file")
    grep -q '__stack_chk_fail' <<<"$symbols" || missing+=("guarded arrays")
    grep -qE '__(memcpy|snprintf|vsnprintf|read|pread|fprintf)[a-z0-9]*_chk' <<<"$symbols" ||
        missing+=("checked copies")
    check_equal "$name has what the compiler can give" "${missing[*]}" ""
done
