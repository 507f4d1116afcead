package tcp

import (
	"context"
	"net"
	"slices"
	"strconv"

	"github.com/shoal-ml/shoal/fabric"
	"github.com/shoal-ml/shoal/internal/group"
)

// This file finds out over which network interfaces two agents reach each other, so that the
// streams of data of a link use them all. Functions here change nothing. Only ownInterfaces asks
// the kernel, and dataPaths other agents, on the goroutine that makes the link.

// nic is a network interface of this host.
type nic struct {
	index    int // the kernel's number of it
	loopback bool
	networks []*net.IPNet // one an address: its IP, and the network reached without a router
}

// ownInterfaces asks the kernel for the interfaces of this host that are up.
func ownInterfaces() (nics []nic) {
	interfaces, _ := net.Interfaces() // without any, one address has to do
	for _, i := range interfaces {
		if i.Flags&net.FlagUp == 0 {
			continue
		}
		c := nic{index: i.Index, loopback: i.Flags&net.FlagLoopback != 0}
		addresses, _ := i.Addrs()
		for _, a := range addresses {
			if n, ok := a.(*net.IPNet); ok {
				c.networks = append(c.networks, n)
			}
		}
		nics = append(nics, c)
	}
	return nics
}

// addressesToOffer returns the addresses by which an agent is reached beside the one at ip: one of
// each other interface, as many as there are streams for.
func addressesToOffer(nics []nic, ip net.IP, port int) (addresses []string) {
	for _, c := range nics {
		var found net.IP
		for _, n := range c.networks {
			if n.IP.Equal(ip) {
				found = nil
				break
			}
			if n.IP.IsGlobalUnicast() && (found == nil || found.To4() == nil && n.IP.To4() != nil) {
				found = n.IP
			}
		}
		if found != nil && !c.loopback && len(addresses) < fabric.MaxStreams-1 {
			addresses = append(addresses, net.JoinHostPort(found.String(), strconv.Itoa(port)))
		}
	}
	return addresses
}

// reachableAddresses returns those of the addresses that another agent offers which an interface of
// this host reaches without a router: one for each interface but the one that has the address at.
// Networks that exist on both hosts and lead nowhere, such as those of containers, often give both
// the same address.
func reachableAddresses(nics []nic, at net.IP, addresses []string) (reached []string) {
	used, own := map[int]bool{}, map[string]bool{}
	for _, c := range nics {
		for _, n := range c.networks {
			own[n.IP.String()] = true
			used[c.index] = used[c.index] || n.IP.Equal(at)
		}
	}
	for _, address := range addresses {
		ip := hostIP(address)
		if ip == nil || own[ip.String()] || len(reached) == fabric.MaxStreams-1 {
			continue
		}
		if i := slices.IndexFunc(nics, func(c nic) bool {
			return !used[c.index] && !c.loopback && c.reaches(ip)
		}); i >= 0 {
			used[nics[i].index] = true
			reached = append(reached, address)
		}
	}
	return reached
}

// reaches reports whether the interface reaches an address without a router.
func (c *nic) reaches(ip net.IP) bool {
	return slices.ContainsFunc(c.networks, func(n *net.IPNet) bool { return n.Contains(ip) })
}

// dataPaths returns the addresses over which the streams of data go in turn: the one of the control
// stream, and of the addresses that the peer offers those that other interfaces reach and where the
// same agent answers. It dials these, and waits for at most connectTime.
func (c *call) dataPaths(control *stream, addresses []string) []string {
	paths := []string{c.to.Address}
	if len(addresses) == 0 {
		return paths
	}
	reached := reachableAddresses(ownInterfaces(), control.LocalAddr().(*net.TCPAddr).IP, addresses)
	answered := make([]bool, len(reached))
	g := group.New(c.ctx)
	for i, address := range reached {
		g.Go("probe of an address", func(ctx context.Context) error {
			ctx, stop := context.WithTimeout(ctx, connectTime)
			defer stop()
			_, err := c.network.askAgent(ctx, agent{c.to.Host, address})
			answered[i] = err == nil
			return nil
		})
	}
	_ = g.Wait() // none fails
	for i, address := range reached {
		if answered[i] {
			paths = append(paths, address)
		}
	}
	return paths
}
