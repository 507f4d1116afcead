//go:build !unix

package tcp

// flushNow would write what was gathered as far as the kernel takes it without waiting.
func (w *wire) flushNow() bool { return false }
