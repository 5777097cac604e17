// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT
/* The pipeline of a shard with keys (docs/spec/keys.md): the same program, with mac.h. */
#define PM_KEYED 1
#include "pipeline.bpf.c"
