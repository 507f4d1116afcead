//go:build !amd64 || purego

package kernel

func simd() []*Impl { return nil }
