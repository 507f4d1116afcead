package member

import "github.com/shoal-ml/shoal/topo"

// Record is what the hosts of a job decide on: a generation, and what the head that comes next must know.
type Record struct {
	View topo.View
	Head string      // the host that leads
	Want int         // the size that the job is asked to have
	Next topo.Worker // no worker has had this number or a higher one
}
