/* NVIDIA GPUs for doctor: what NVML tells of devices, driver, memory and its holders, and which devices reach each other;
 * without NVML, the devices that the CUDA driver tells.
 *
 * The look is taken in a child, since a broken driver may hang or crash. Memory that no listed process accounts for is
 * said to be held by processes that cannot be seen from here. */
#ifndef CLI_DOCTOR_GPU_H
#define CLI_DOCTOR_GPU_H
#include "cli/doctor_roots.h"
#include "dev/nvml.h"
#include "io/json.h"

/* Adds findings and one device object per GPU. cuda gets the CUDA generation that the driver serves, "" without one.
 * Returns whether there is a driver. Call it while no other thread computes. */
int doctor_gpu_look(json_t *list, json_t *devices, const doctor_roots *roots, char cuda[16]);

#endif
