/* SPDX-License-Identifier: BSD-3-Clause */
#include "place.h"

#include <stdio.h>

struct attn_place attn_host_place(void)
{
    return (struct attn_place){.device = ATTN_HOST, .host = true};
}

attn_status attn_place_unknown(const char *name, struct attn_place place, struct attn_message *m)
{
    return place.unknown ? attn_say(m, ATTN_DEVICE_ERROR, "%s: where it lies cannot be told: %s",
                                    name, place.unknown)
                         : ATTN_OK;
}

bool attn_places_meet(struct attn_place a, struct attn_place b)
{
    return a.device == b.device && (!a.context || !b.context || a.context == b.context);
}

const char *attn_place_name(struct attn_place place, char text[ATTN_PLACE_NAME])
{
    if (place.device == ATTN_HOST)
        return "host memory";
    snprintf(text, ATTN_PLACE_NAME, "memory of device %d", (int)place.device);
    return text;
}

attn_status attn_lie_apart(const char *a, struct attn_place at, const char *b,
                           struct attn_place place, struct attn_message *m)
{
    char here[ATTN_PLACE_NAME], there[ATTN_PLACE_NAME];
    if (at.device == place.device)
        return attn_say(m, ATTN_INVALID_CONFLICT, "%s: lies in %s, but in another context than %s",
                        a, attn_place_name(at, here), b);
    return attn_say(m, ATTN_INVALID_CONFLICT, "%s: lies in %s, but %s in %s", a,
                    attn_place_name(at, here), b, attn_place_name(place, there));
}
