/* SPDX-License-Identifier: BSD-3-Clause */
#include "on_device.h"

attn_status attn_settle_place(const struct attn_call *call, const char *name,
                              struct attn_place place, struct attn_place *at)
{
    const attn_backend backend = call->settings->backend;
    const bool may = backend == ATTN_BACKEND_AUTO || backend == ATTN_BACKEND_CUDA;
    const attn_status status = attn_place_unknown(name, place, call->message);
    if (status != ATTN_OK)
        return status;
    *at = may ? place : attn_host_place();
    if (at->device != ATTN_HOST || place.host)
        return ATTN_OK;
    return attn_say(call->message, ATTN_UNSUPPORTED,
                    "%s: lies in memory of device %d, and backend %s works on host memory", name,
                    (int)place.device, attn_backend_name(backend));
}

attn_status attn_settle_tokens(const struct attn_call *call, const char *name,
                               struct attn_place place, const struct attn_tokens *t,
                               struct attn_place *at)
{
    int array = 0;
    while (t->unread && !(t->unread & ATTN_BIT(array)))
        array++;
    if (t->unread) /* what the host cannot reach, whatever it can */
        name = attn_tokens_array((enum attn_array)array);
    return attn_settle_place(call, name, place, at);
}

attn_status attn_tokens_status(const struct attn_call *call, const struct attn_tokens *t,
                               struct attn_place at)
{
    const struct attn_device_call c = {call->settings, at, call->message};
    const struct attn_reported what = {attn_tokens_array, "tokens", "cache", "report",
                                       &t->to};
    if (!t->unread)
        return ATTN_OK;
    if (!t->report)
        return attn_say(call->message, ATTN_INVALID_NULL, "report: null, so nothing was noted");
    return attn_device_ops->told(&c, t->report, &what);
}

static attn_status check_aligned(const struct attn_call *call, const struct attn_placed *a)
{
    if ((uintptr_t)a->data % (uintptr_t)a->size == 0)
        return ATTN_OK;
    return attn_say(call->message, ATTN_INVALID_STRIDE,
                    "%s: address 0x%llx is not a multiple of its entries' %lld bytes", a->name,
                    (unsigned long long)(uintptr_t)a->data, (long long)a->size);
}

attn_status attn_find_place(const struct attn_call *call, const struct attn_placed *arrays,
                            int count, struct attn_place *at)
{
    struct attn_place place = attn_host_place();
    const char *first = NULL, *far = NULL; /* far: the first that the host cannot reach */
    for (int anywhere = 0; anywhere < 2; anywhere++)
        for (int n = 0; n < count; n++) {
            if (!arrays[n].data || arrays[n].anywhere != anywhere)
                continue;
            const struct attn_place here = attn_place_of(arrays[n].data);
            attn_status status = check_aligned(call, &arrays[n]);
            if (status == ATTN_OK)
                status = attn_place_unknown(arrays[n].name, here, call->message);
            if (status != ATTN_OK)
                return status;
            const bool goes = (anywhere && here.host) || attn_places_meet(here, place);
            if (first && !goes)
                return attn_lie_apart(arrays[n].name, here, first, place, call->message);
            if (!first)
                place = here;
            if (!place.context && place.device == here.device)
                place.context = here.context;
            first = first ? first : arrays[n].name;
            far = far || here.host ? far : arrays[n].name;
            place.host = !far;
        }
    return attn_settle_place(call, far ? far : first ? first : "", place, at);
}

bool attn_is_known(const void *data, int32_t device)
{
    const struct attn_place place = attn_place_of(data);
    return device == ATTN_HOST ? place.host : place.device == ATTN_HOST;
}
