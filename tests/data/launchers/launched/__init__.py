KERNELS = {
    "axpy": {
        "raw": "launched.by_cupy:raw",
        "elementwise": "launched.by_cupy:elementwise",
        "temporary": "launched.by_cupy:temporary",
        "waiting": "launched.by_cupy:waiting",
        "core": "launched.by_core:axpy",
        "triton": "launched.by_triton:axpy",
        "tuned": "launched.by_triton:tuned",
        "torch": "launched.by_torch:axpy",
        "compiled": "launched.by_torch:compiled",
        "wrong": "launched.faulty:wrong",
        "beyond": "launched.faulty:beyond",
        "far": "launched.faulty:far",
        "far_triton": "launched.by_triton:far",
        "elsewhere": "launched.faulty:elsewhere",
        "partly": "launched.faulty:partly",
        "view": "launched.faulty:view",
        "hanging": "launched.faulty:hanging",
        "unimportable": "launched.broken:axpy",
    }
}
