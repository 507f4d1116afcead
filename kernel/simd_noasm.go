//go:build !amd64 || purego

package kernel

// simdImpls lists none: this build has no SIMD code.
func simdImpls() []*Impl { return nil }
