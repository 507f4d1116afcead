package launcher

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/shoal-ml/shoal/job"
)

// A worker gets the variables of shoal and of torch, with its own rank.
func TestEnvironment(t *testing.T) {
	s := environment{
		base: []string{"HOME=/h", "RANK=7", "SHOAL_RANK=9", "SHOAL_RUN=outer"},
		spec: job.Spec{Name: "digits", Workers: 3,
			Env: map[string]string{"HOME": "/other", "LOG": "a=b", "MASTER_PORT": "7"}},
		run: "0f3a", socket: "/run/s", mark: "outer/run", cores: 8, here: 3, addr: "127.0.0.1",
		port: 4242,
	}
	want := map[string]string{
		"HOME": "/other", "LOG": "a=b", "MASTER_PORT": "7", "MASTER_ADDR": "127.0.0.1",
		"SHOAL_SOCKET": "/run/s", "SHOAL_JOB": "digits", "SHOAL_RANK": "1", "SHOAL_SIZE": "3",
		"SHOAL_TOKEN": "t1", "SHOAL_RUN": "outer/run", "SHOAL_JOB_RUN": "0f3a",
		"RANK": "1", "WORLD_SIZE": "3", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "3",
		"OMP_NUM_THREADS": "2", "PYTHONUNBUFFERED": "1", "THP_MEM_ALLOC_ENABLE": "1",
	}
	env := s.workerVariables(
		position{worker: 1, token: "t1", rank: 1, size: 3, local: 1, here: 3, port: 4242})
	for key, value := range want {
		if got, _ := lookupVariable(env, key); got != value {
			t.Errorf("%s=%q, want %q", key, got, value)
		}
	}
	if d := cmp.Diff([]string{"HOME=/h", "RANK=7", "SHOAL_RANK=9", "SHOAL_RUN=outer"},
		s.base); d != "" {
		t.Errorf("the launcher's environment was changed: %s", d)
	}
}

// To torch, a worker that comes late is a job of one with a port of its own.
func TestLateEnvironment(t *testing.T) {
	s := environment{spec: job.Spec{Name: "digits", Workers: 3}, socket: "/run/s", cores: 8,
		port: 4242}
	env := s.workerVariables(position{worker: 5, token: "t5", size: 1, port: 4343})
	for key, value := range map[string]string{"SHOAL_RANK": "5", "SHOAL_TOKEN": "t5", "RANK": "0",
		"WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "MASTER_PORT": "4343"} {
		if got, _ := lookupVariable(env, key); got != value {
			t.Errorf("%s=%q, want %q", key, got, value)
		}
	}
}

// Workers of all hosts have the id of the run of their job, beside that of what runs on their host,
// by which it is ended.
func TestAllHostsKnowTheRunOfTheJob(t *testing.T) {
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
	l, err := newLauncher(RunConfig{}, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer l.place.Close()
	env := l.workerEnvironment(jobMessage{Spec: job.Spec{Name: "digits", Workers: 3},
		Run: "0f3a"}).hostVariables(1, "", 0)
	for key, want := range map[string]string{"SHOAL_JOB_RUN": "0f3a",
		"SHOAL_RUN": l.place.Mark()} {
		if got, _ := lookupVariable(env, key); got != want {
			t.Errorf("%s=%q, want %q", key, got, want)
		}
	}
}

// What the user has set in the environment stays.
func TestEnvironmentLeavesChoices(t *testing.T) {
	s := environment{base: []string{"OMP_NUM_THREADS=5", "PYTHONUNBUFFERED=",
		"THP_MEM_ALLOC_ENABLE=0"}, spec: job.Spec{Workers: 1}, cores: 8, port: 4242}
	env := s.workerVariables(position{token: "t", size: 1, port: 4242})
	for key, value := range map[string]string{"OMP_NUM_THREADS": "5", "PYTHONUNBUFFERED": "",
		"THP_MEM_ALLOC_ENABLE": "0", "MASTER_PORT": "4242"} {
		if got, set := lookupVariable(env, key); got != value || !set {
			t.Errorf("%s=%q, want %q", key, got, value)
		}
	}
}

// Workers that outnumber the cores are given one thread each to compute with.
func TestEveryWorkerHasACore(t *testing.T) {
	if d := cmp.Diff([]string{"OMP_NUM_THREADS=1", "PYTHONUNBUFFERED=1",
		"THP_MEM_ALLOC_ENABLE=1"}, defaultVariables(nil, 2, 4)); d != "" {
		t.Error(d)
	}
}

// Torch's rank 0 listens on the port long after it was chosen: nobody else may be given it
// meanwhile.
func TestAPortThatIsNotHandedOut(t *testing.T) {
	for range 200 {
		if p := freePort(); p < firstPort || p > lastPort {
			t.Fatalf("port %d", p)
		}
	}
}
