package launcher

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"strings"

	api "github.com/shoal-ml/shoal/api/worker"
	"github.com/shoal-ml/shoal/job"
	"github.com/shoal-ml/shoal/launcher/proc"
)

// The variables that the launcher gives the workers of this host. The supervisor asks for them on
// the goroutine on which it starts workers. But for freePort, the functions and methods of this
// file are pure.

// masterPort is torch's customary port. firstPort to lastPort are ports that neither Linux gives to
// programs that ask for any port, nor Kubernetes to its services.
const masterPort, firstPort, lastPort = 29500, 20000, 29999

// environment is what the environments of a run's workers have in common. Its methods change
// nothing, and return slices that are the caller's.
type environment struct {
	base   []string // environment of the launcher
	spec   job.Spec
	run    string // id of the run of the job
	socket string // path of the agent's socket
	mark   string // value of proc.RunVariable
	cores  int    // cores that the workers of this host share
	here   int    // workers that share the cores of this host, as far as it takes so many
	addr   string // address of the host where torch's rank 0 listens
	port   int    // port on which torch's rank 0 listens
}

// position is where a worker stands in its job when it starts. For torch a late worker is a job of
// one, with a port of its own, until it enters.
type position struct {
	worker     int    // number of the worker
	token      string // secret that the worker shows to the agent
	rank, size int
	local      int    // position among the workers that begin on the host
	here       int    // number of workers that begin on the host; 0 = 1
	port       int    // MASTER_PORT
	gpus       string // entry that says which GPUs the worker sees; "" = all of the host
}

// hostVariables returns what the environments of all workers of the host have: as many as here, or
// e.here if that is more, share its cores, and torch's rank 0 listens at addr and port. Of two
// entries for a key the later one counts.
func (e environment) hostVariables(here int, addr string, port int) []string {
	env := slices.Clone(e.base)
	env = append(env, defaultVariables(e.base, e.cores, max(here, e.here))...)
	env = append(env, "MASTER_ADDR="+addr, "MASTER_PORT="+strconv.Itoa(port))
	for _, key := range slices.Sorted(maps.Keys(e.spec.Env)) {
		env = append(env, key+"="+e.spec.Env[key])
	}
	return append(env,
		api.EnvSocket+"="+e.socket,
		api.EnvJob+"="+e.spec.Name,
		api.EnvJobRun+"="+e.run,
		proc.RunVariable+"="+e.mark,
	)
}

// workerVariables returns the environment of a worker. Of two entries for a key the later one
// counts.
func (e environment) workerVariables(p position) []string {
	here := max(p.here, 1)
	size := strconv.Itoa(p.size)
	env := e.hostVariables(here, e.addr, p.port)
	if p.gpus != "" {
		env = append(env, p.gpus)
	}
	return append(env,
		api.EnvRank+"="+strconv.Itoa(p.worker),
		api.EnvSize+"="+size,
		api.EnvToken+"="+p.token,
		"RANK="+strconv.Itoa(p.rank),
		"WORLD_SIZE="+size,
		"LOCAL_RANK="+strconv.Itoa(p.local),
		"LOCAL_WORLD_SIZE="+strconv.Itoa(here),
	)
}

// defaultVariables returns the variables that a user has not set in base, and that size workers on
// these cores are to have. Workers share the cores instead of fighting for them, and Python's
// output comes when it is written. PyTorch asks for huge pages for what it has in memory, so that a
// step waits less for pages, and the kernel has soon freed those of a worker that was killed: the
// others take over its samples on the same cores meanwhile.
func defaultVariables(base []string, cores, size int) (env []string) {
	for _, v := range [][2]string{
		{"OMP_NUM_THREADS", strconv.Itoa(max(1, cores/size))},
		{"PYTHONUNBUFFERED", "1"},
		{"THP_MEM_ALLOC_ENABLE", "1"},
	} {
		if _, set := lookupVariable(base, v[0]); !set {
			env = append(env, v[0]+"="+v[1])
		}
	}
	return env
}

// lookupVariable finds a variable in an environment. Of two entries for a key the later one counts.
func lookupVariable(env []string, key string) (value string, set bool) {
	for _, entry := range env {
		if v, ok := strings.CutPrefix(entry, key+"="); ok {
			value, set = v, true
		}
	}
	return value, set
}

// freePort finds a port that nobody listens on now, by listening on it for a moment. A worker
// listens there seconds later, so the port is one that others are not given meanwhile. It is
// masterPort if none is found.
func freePort() int {
	for range 100 {
		port := firstPort + rand.IntN(lastPort-firstPort+1)
		if l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
			l.Close()
			return port
		}
	}
	return masterPort
}
