/* Stands in for the driver and CUPTI: cuModuleLoadData hands what it is given to the callback of CUPTI's subscriber.
   The driver and CUPTI are built from this file, each with what it has (-DCUPTI for the latter). */
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>

struct module { uint32_t id; size_t size; const void *cubin; };
struct resource { void *context, *handle; struct module *module; };
typedef void (*callback)(void *user, int domain, uint32_t what, struct resource *resource);

#ifdef CUPTI
static callback subscribed;

int cuptiSubscribe(void **subscriber, callback wanted, void *user) {
    (void)subscriber, (void)user;
    subscribed = wanted;
    return getenv("CUPTI_IN_USE") ? 39 : 0;
}

int cuptiEnableCallback(uint32_t enable, void *subscriber, int domain, uint32_t what) {
    (void)enable, (void)subscriber;
    return domain == 3 && what == 6 ? 0 : 1;
}

void loaded(const void *cubin, size_t size) {
    struct module module = {1, size, cubin};
    struct resource resource = {0, 0, &module};
    if (subscribed) subscribed(0, 3, 6, &resource);
}
#else
int cuModuleLoadData(const void *cubin, size_t size) {
    void *cupti = dlopen("libcupti.so", RTLD_LAZY | RTLD_NOLOAD);
    void (*loaded)(const void *, size_t) = cupti ? (void (*)(const void *, size_t))dlsym(cupti, "loaded") : 0;
    if (loaded) loaded(cubin, size);
    return 0;
}
#endif
