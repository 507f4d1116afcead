//go:build !linux

package tcp

import (
	"net"
	"time"
)

// acked is not known here: a peer is judged by what its process says alone.
func acked(*net.TCPConn) (ago time.Duration, ok bool) { return 0, false }
