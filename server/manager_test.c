#include "server/manager_state.h"

#include "base/test.h"

static void set_state__every_pair__only_the_next_one_is_legal(void **state)
{
    (void)state;
    for (enum manager_state from = MANAGER_STARTING; from <= MANAGER_CLOSED; from++)
        for (enum manager_state to = MANAGER_STARTING; to <= MANAGER_CLOSED; to++) {
            static struct kvf_manager manager;
            manager.state = from;
            if (to == from + 1) {
                manager_set_state(&manager, to);
                assert_int_equal(manager.state, to);
            } else {
                assert_aborts(manager_set_state(&manager, to));
            }
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(set_state__every_pair__only_the_next_one_is_legal),
    };
    return cmocka_run_group_tests_name("server/manager", tests, NULL, NULL);
}
