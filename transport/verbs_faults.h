/* libibverbs' and librdmacm's calls wrapped, so that they fail where a test says so, and a device can seem to lack
 * windows. Test only. */
#ifndef KVFERRY_TRANSPORT_VERBS_FAULTS_H
#define KVFERRY_TRANSPORT_VERBS_FAULTS_H

#include <stdbool.h>

/* The nth call from now on that makes, changes or posts something fails, once; 0: none does. */
void verbs_faults_fail_at(unsigned nth);
/* One has failed since then. */
bool verbs_faults_failed(void);
/* Devices that are opened from now on say that they have no type-2B windows. */
void verbs_faults_no_windows(bool none);

#endif
