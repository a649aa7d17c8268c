/* rpc_budget.c - see rpc_budget.h. */
#include "proto/wire/rpc_budget.h"

#include "proto/base/report.h"

#include <stdlib.h>

void rpc_account_refill(struct rpc_account *account, int64_t now_ms)
{
    int64_t more = (now_ms - account->refilled_ms) * account->rate.per_second / 1000;
    if (more <= 0)
        return; /* the time counts for the next call */
    account->left =
        account->left + more < account->rate.burst ? account->left + more : account->rate.burst;
    account->refilled_ms = now_ms;
}

int rpc_budget_find(struct rpc_account **out, struct rpc_budget *budget,
                    const struct principal *user, int64_t now_ms)
{
    *out = NULL;
    if (principal_is_privileged(user))
        return 0;
    struct rpc_account *account = budget->accounts;
    while (account && !principal_is_same(&account->user, user))
        account = account->next;
    if (!account && user->kind == PRINCIPAL_ADDRESS && budget->num_accounts >= RPC_ACCOUNTS_MAX) {
        rpc_budget_sweep(budget, now_ms);
        if (budget->num_accounts >= RPC_ACCOUNTS_MAX)
            return report_error(ERR_BUSY, NULL, "too many addresses come at once");
    }
    if (!account) {
        account = calloc(1, sizeof *account);
        if (!account)
            return report_error(ERR_MEMORY, NULL, "no memory for a user's budget");
        *account = (struct rpc_account){.next = budget->accounts,
                                        .user = *user,
                                        .rate = budget->rate,
                                        .left = budget->rate.burst,
                                        .refilled_ms = now_ms};
        budget->accounts = account;
        budget->num_accounts++;
    }
    rpc_account_refill(account, now_ms);
    *out = account;
    return 0;
}

void rpc_budget_sweep(struct rpc_budget *budget, int64_t now_ms)
{
    struct rpc_account **at = &budget->accounts;
    while (*at) {
        struct rpc_account *account = *at;
        rpc_account_refill(account, now_ms);
        if (account->num_links > 0 || account->left < account->rate.burst) {
            at = &account->next;
            continue;
        }
        *at = account->next;
        budget->num_accounts--;
        free(account);
    }
}

void rpc_budget_deinit(struct rpc_budget *budget)
{
    while (budget->accounts) {
        struct rpc_account *account = budget->accounts;
        budget->accounts = account->next;
        free(account);
    }
}
