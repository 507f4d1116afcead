package cluster

import (
	"fmt"
	"math"
	"strconv"

	"github.com/shoal-ml/shoal/decide/sched"
	"github.com/shoal-ml/shoal/sim/trace"
)

// Config says on what the jobs of a trace are played, and who decides. Play only reads it.
type Config struct {
	Policy sched.Policy
	GPUs   int // of all hosts; at least 1

	// PerHost is the GPUs of a host; 0 = all are alike, wherever they are. Where there are hosts, a
	// job on more of them than it needs is slower, by a factor of its own from 1 to MostSpread.
	PerHost int

	Costs sched.Costs // what changes take, which the policy knows
	Sigma float64     // by what predictions of work are off: standard deviation of the logarithm
	Load  float64     // how many times as fast as in the trace jobs arrive; 0 = 1
	Seed  uint64      // of all chance

	// Curves are the speeds of models. A job whose model is among them has any size that was
	// measured. One without a model gets one by chance, of those that were measured with as many
	// GPUs as it asks for. Where there is none, a job has the GPUs that it asks for, or none.
	Curves []trace.Curve

	Round int64   // milliseconds between decisions of policies that decide of all jobs at once
	Age   float64 // how much sooner jobs come by waiting; sched.Config has it
	Gain  float64 // how many times its cost a change must gain; 0 = sched.DefaultGain

	Outages []Outage // hosts that are lost for a while; in any order

	// Progress is told how many of all jobs have ended, about a hundred times; nil = nobody is.
	Progress func(ended, all int)
}

// Outage is the loss of a host. Times are in milliseconds since the first job arrived.
type Outage struct {
	Host int   // number of the host, from 0 on
	From int64 // when it is lost
	To   int64 // when it is there again, empty
}

// MostSpread is how many times slower a job is at most on more hosts than it needs.
const MostSpread = 1.6

// Live and Restart are what changes take where jobs are changed while they run, and where a change
// is a restart from the newest checkpoint.
var (
	Live    = pauseCosts(1)
	Restart = pauseCosts(900)
)

// PausePerChange returns costs by which each change but the first start of a job takes so many
// seconds.
func PausePerChange(seconds float64) sched.Costs { return pauseCosts(seconds) }

// pauseCosts returns costs with which a job stands still for so many seconds when its size changes
// and when it goes on after it was parked; its first start and the parking take none.
func pauseCosts(seconds float64) sched.Costs {
	pause := sched.Estimate{Mean: 1000 * seconds}
	return sched.Costs{Resize: pause, Resume: pause}
}

// check returns an error that says what is wrong with a configuration, or nil.
func (c *Config) check() error {
	switch {
	case c.GPUs < 1:
		return fmt.Errorf("a cluster of %d GPUs: it takes at least 1", c.GPUs)
	case c.PerHost < 0 || c.PerHost > 0 && c.GPUs%c.PerHost != 0:
		return fmt.Errorf("%d GPUs are no whole number of hosts with %d each", c.GPUs, c.PerHost)
	case !(c.Sigma >= 0 && c.Sigma <= 10):
		return fmt.Errorf("predictions are off by sigma %v: write a number from 0 to 10", c.Sigma)
	case c.Load != 0 && !(c.Load >= 1e-3 && c.Load <= 1e3):
		return fmt.Errorf("a load of %v times that of the trace: write a number from 0.001 to 1000",
			c.Load)
	case math.IsNaN(c.Age) || c.Age < 0 || math.IsInf(c.Age, 1):
		return fmt.Errorf("ageing by %v: write a number from 0 on", c.Age)
	}
	return c.checkOutages()
}

// checkOutages returns an error that says what is wrong with the outages, or nil.
func (c *Config) checkOutages() error {
	hosts := c.hosts()
	for i, o := range c.Outages {
		if o.Host < 0 || o.Host >= hosts || o.From < 0 || o.To <= o.From {
			return fmt.Errorf("host %d is lost from %d ms to %d ms: there are hosts 0 to %d, and "+
				"the end comes after the beginning", o.Host, o.From, o.To, hosts-1)
		}
		for _, p := range c.Outages[:i] {
			if p.Host == o.Host && p.From <= o.To && o.From <= p.To {
				return fmt.Errorf("host %d is lost from %d ms to %d ms, and from %d ms to %d ms: "+
					"it is there between two losses", o.Host, p.From, p.To, o.From, o.To)
			}
		}
	}
	return nil
}

// hosts returns how many hosts there are.
func (c *Config) hosts() int {
	if c.PerHost == 0 {
		return 1
	}
	return c.GPUs / c.PerHost
}

// host returns the host of a number.
func (c *Config) host(i int) sched.Host {
	slots := c.PerHost
	if slots == 0 {
		slots = c.GPUs
	}
	// the machine has hosts in the order of their names, which is that of these numbers
	digits := max(5, len(strconv.Itoa(c.hosts()-1)))
	return sched.Host{Name: fmt.Sprintf("h%0*d", digits, i), Slots: slots}
}
