//go:build !linux

package tcp

import (
	"net"
	"time"

	"github.com/shoal-ml/shoal/fabric"
)

// What acked_linux.go asks the kernel about TCP is not known on other systems. Any goroutine may
// call the functions, which do nothing.

// timeSinceAck would return for how long the peer's kernel has acknowledged nothing. That is not
// known here, so ok is false: a peer is judged by what its process says alone.
func timeSinceAck(*net.TCPConn) (ago time.Duration, ok bool) { return 0, false }

// ackOwedFor would return for how long the peer's kernel owes an acknowledgement. That is not known
// here, so it is 0: an interface is judged by its connections' ends alone.
func ackOwedFor(*net.TCPConn) time.Duration { return 0 }

// sentOn would return what a connection has carried so far. That is not known here, so ok is false.
func sentOn(*net.TCPConn) (s fabric.Sent, ok bool) { return s, false }
