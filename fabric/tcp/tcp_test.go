package tcp

import (
	"testing"
	"time"

	"github.com/shoal-ml/shoal/fabric"
	"github.com/shoal-ml/shoal/fabric/fabrictest"
)

// cluster makes agents of one job on the loopback, which its user closes. The goroutine of the test
// uses it.
type cluster struct {
	config Config     // what all agents have but Name and Listen
	alive  []*Network // agents that were not killed, the oldest first
}

// Add implements fabrictest.Cluster: the first agent makes the job, each other one joins it.
func (c *cluster) Add(t testing.TB, name fabric.Host, h fabric.Handler) fabric.Network {
	t.Helper()
	config := c.config
	config.Name, config.Listen = name, "127.0.0.1:0"
	var m *Network
	var err error
	if len(c.alive) == 0 {
		m, err = Create(config, h)
	} else {
		through := c.alive[len(c.alive)/2] // any agent lets newcomers in
		m, err = Join(t.Context(), through.Addr(), through.Token(time.Minute), config, h)
	}
	if err != nil {
		t.Fatal(err)
	}
	c.alive = append(c.alive, m)
	return m
}

// Kill implements fabrictest.Cluster: it closes the sockets of m, an agent from Add.
func (c *cluster) Kill(m fabric.Network) {
	m.(*Network).Crash()
	for i, other := range c.alive {
		if other == m {
			c.alive = append(c.alive[:i:i], c.alive[i+1:]...)
		}
	}
}

// TestSuite: this network does what every network must do, under TLS and without.
func TestSuite(t *testing.T) {
	for name, config := range map[string]Config{"TLS": {Job: "digits"},
		"PlainData": {Job: "digits", PlainData: true}} {
		t.Run(name, func(t *testing.T) {
			fabrictest.Run(t, func(*testing.T) fabrictest.Cluster {
				return &cluster{config: config}
			})
		})
	}
}
