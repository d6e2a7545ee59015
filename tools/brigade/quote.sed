# SPDX-License-Identifier: Apache-2.0
# Every line becomes a string literal of C. (Meson would turn backslashes on a command line around.)
s/[\\"]/\\&/g
s/.*/"&\\n"/
