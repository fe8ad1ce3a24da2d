/* The one place that names kvferry's version. */
#ifndef KVFERRY_BASE_VERSION_H
#define KVFERRY_BASE_VERSION_H

#define KVF_VERSION "0.1.0"

#endif
