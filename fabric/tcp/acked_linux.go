package tcp

import (
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// acked returns for how long the kernel at the other end has acknowledged nothing. It does so also while the process there is not
// scheduled or is stopped; what does not, is a host without power or behind a cut cable.
func acked(c *net.TCPConn) (ago time.Duration, ok bool) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, false
	}
	var info *unix.TCPInfo
	controlErr := raw.Control(func(fd uintptr) { info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO) })
	if controlErr != nil || err != nil {
		return 0, false
	}
	return time.Duration(info.Last_ack_recv) * time.Millisecond, true
}
