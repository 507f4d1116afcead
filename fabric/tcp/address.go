package tcp

import (
	"net"
	"strconv"
)

// The addresses by which other agents reach this one. Create and join call these functions before
// the first connection is served, so the fields of Network that they set need no lock; the
// functions without a receiver are pure, but for localIP, which asks the kernel.

// port returns the port at which this agent listens.
func (m *Network) port() int { return m.listener.Addr().(*net.TCPAddr).Port }

// setAddresses sets m.address and m.otherAddresses, by which others reach this agent: at ip unless
// it was told otherwise. Its other interfaces count where it listens on all of them. It is called
// before the first connection is served.
func (m *Network) setAddresses(ip net.IP) {
	m.address = advertisedAddress(m.config.Advertise, m.port(), ip)
	if m.config.Advertise == "" && m.listener.Addr().(*net.TCPAddr).IP.IsUnspecified() {
		m.otherAddresses = addressesToOffer(ownInterfaces(), ip, m.port())
	}
}

// advertisedAddress returns the HOST:PORT by which others reach an agent: told, which is HOST or
// HOST:PORT, completed by its port; or where told is "", its IP and port.
func advertisedAddress(told string, port int, ip net.IP) string {
	switch {
	case told == "":
		told = ip.String()
	default:
		if _, _, err := net.SplitHostPort(told); err == nil {
			return told
		}
	}
	return net.JoinHostPort(told, strconv.Itoa(port))
}

// localIP returns the IP of one who listens: the one it listens at, or if that is all of them, the
// first of this host that others can have a route to, of IPv4 if there is one; else the loopback.
func localIP(l *net.TCPListener) net.IP {
	if ip := l.Addr().(*net.TCPAddr).IP; !ip.IsUnspecified() {
		return ip
	}
	addresses, _ := net.InterfaceAddrs() // without any, there is the loopback
	var found net.IP
	for _, a := range addresses {
		n, ok := a.(*net.IPNet)
		if ok && n.IP.IsGlobalUnicast() &&
			(found == nil || found.To4() == nil && n.IP.To4() != nil) {
			found = n.IP
		}
	}
	if found == nil {
		return net.IPv4(127, 0, 0, 1)
	}
	return found
}

// hostIP returns the IP in HOST:PORT, or nil if it is a name.
func hostIP(address string) net.IP {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil
	}
	return net.ParseIP(host)
}
