/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What a backend offers: two functions. plan() is its only picker: what it says is what explain
 * reports, what the workspace query answers and what run() does, so they cannot disagree.
 */
#ifndef ATTN_BACKEND_H
#define ATTN_BACKEND_H

#include "attn/attn.h"
#include "message.h"
#include "problem.h"

/* What a context keeps from call to call for a backend that computes on a device: two buffers
 * through which tensors go from the host's memory to the device's and back. All zero at first. */
struct attn_ferry {
    void *buffer[2]; /* of `bytes` bytes each */
    void *event[2];  /* when the device is done with it */
    size_t bytes;
    void *context; /* the driver's, which the events are of */
};

/* Gives all of it back (backends.c). */
void attn_ferry_release(struct attn_ferry *ferry);

/* A context's choices with defaults resolved. */
struct attn_settings {
    attn_backend backend;
    int32_t threads;         /* at least 1 */
    int32_t isa;             /* cpu: index of the best set allowed, as attn_isa_name() counts */
    void *stream;
    attn_allocator allocator; /* both functions set */
    struct attn_ferry *ferry; /* of the context; null: none is kept */
    uintptr_t *keys; /* of the context: where the keys of the cpu backend's last call lay; null:
                        nothing is kept */
};

/* A backend's answer to a problem. */
struct attn_plan {
    attn_status status; /* ATTN_OK, ATTN_UNSUPPORTED, ATTN_NO_DEVICE or ATTN_DEVICE_ERROR */
    size_t workspace;   /* bytes that run() needs, aligned to ATTN_ALIGN, where the tensors lie */
    bool brings_own;    /* run() takes them itself where the caller brings none */
    int32_t threads;    /* at most so many work on it */
    const void *kernel_set; /* the backend's own: what it picked, */
    _Alignas(16) unsigned char layout[256]; /* and what it laid out, for run() */
    const char *kernel[3]; /* the words of its name; null where there are fewer */
    char reason[192];   /* of a refusal: the field and why */
};

#define ATTN_ALIGN 64 /* bytes; alignment of workspaces */

struct attn_backend_ops {
    attn_backend id;
    bool device; /* computes on a device: automatic choice gives it tensors that lie on one, and no
                    others. Backends that do not are only asked about what the host can read */
    /* Never fails, writes only *plan; reads lengths (that are not p->unread), but no tensor. */
    void (*plan)(const struct attn_settings *s, const struct attn_problem *p,
                 struct attn_plan *plan);
    /* Computes a problem that plan() accepted. Returns ATTN_OK, or, with a message, ATTN_NO_MEMORY
     * or ATTN_DEVICE_ERROR. */
    attn_status (*run)(const struct attn_settings *s, const struct attn_problem *p,
                       const struct attn_plan *plan, void *workspace, struct attn_message *m);
    /* Waits for the last run() in this workspace, and tells what it found wrong with arrays that
     * the host cannot read: ATTN_OK, an ATTN_INVALID_ status, ATTN_DEVICE_ERROR. Null where there
     * are none such. */
    attn_status (*status)(const struct attn_settings *s, const struct attn_problem *p,
                          void *workspace, struct attn_message *m);
};

/* The backends built in, in the order in which automatic choice asks them; null at the end. */
extern const struct attn_backend_ops *const attn_backends[];

/* Fills *plan as refused: status and a message in the manner of printf. */
void attn_plan_refuse(struct attn_plan *plan, attn_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Refuses the first used feature outside `offered` by name and returns false, and so it does with
 * dropout that no backend can draw; true if none is. */
bool attn_plan_offers(struct attn_plan *plan, const struct attn_problem *p, uint32_t offered,
                      const char *backend);

extern const struct attn_backend_ops attn_backend_cuda;
extern const struct attn_backend_ops attn_backend_cpu;
extern const struct attn_backend_ops attn_backend_eager;

/* What the cuda backend knows of a pointer; see place.h. */
struct attn_place attn_cuda_place(const void *data);
void attn_cuda_ferry_release(struct attn_ferry *ferry);

#endif
