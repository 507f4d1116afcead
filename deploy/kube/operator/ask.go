package operator

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/shoal-ml/shoal/api/control"
)

// How the operator asks jobs, at the address of --status-listen in their pods.

// Asker asks the pods of jobs.
type Asker interface {
	// Ask returns what the job says of itself at the address of a pod. The error is errWaiting if
	// the pod waits for a job to join.
	Ask(ctx context.Context, ip, token string) (control.Job, error)
	// Park asks the job for a checkpoint behind which its workers end.
	Park(ctx context.Context, ip, token string) error
}

// errWaiting says that a pod waits for a job to join.
var errWaiting = errors.New("the pod waits for a job to join")

// HTTPAsker is an Asker that asks by HTTP.
type HTTPAsker struct{ client http.Client }

// patience is how long a pod may take to answer.
const patience = 3 * time.Second

// maxAnswer bounds an answer, in bytes.
const maxAnswer = 8 << 20

// NewHTTPAsker returns an Asker that asks by HTTP.
func NewHTTPAsker() *HTTPAsker { return &HTTPAsker{http.Client{Timeout: patience}} }

// Ask implements Asker.
func (a *HTTPAsker) Ask(ctx context.Context, ip, token string) (j control.Job, err error) {
	return j, a.send(ctx, http.MethodGet, ip, control.PathJob, token, nil, &j)
}

// Park implements Asker.
func (a *HTTPAsker) Park(ctx context.Context, ip, token string) error {
	body, err := json.Marshal(control.Park{Who: "the operator, as the ShoalJob says"})
	if err != nil {
		return err
	}
	return a.send(ctx, http.MethodPost, ip, control.PathPark, token, body, nil)
}

// send sends a request and takes the answer into a value, if there is one.
func (a *HTTPAsker) send(ctx context.Context, method, ip, path, token string, body []byte,
	into any) error {
	url := "http://" + net.JoinHostPort(ip, strconv.Itoa(portStatus)) + path
	request, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Authorization", "Bearer "+token)
	answer, err := a.client.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, maxAnswer))
	switch {
	case err != nil:
		return err
	case answer.StatusCode == http.StatusNotFound:
		return errWaiting
	case answer.StatusCode != http.StatusOK:
		var refusal control.Error
		if json.Unmarshal(text, &refusal) == nil && refusal.Error != "" {
			return errors.New(refusal.Error)
		}
		return fmt.Errorf("%s", answer.Status)
	case into == nil:
		return nil
	}
	return json.Unmarshal(text, into)
}

// portNumber returns a port as objects have it.
func portNumber(n int) intstr.IntOrString { return intstr.FromInt(n) }
